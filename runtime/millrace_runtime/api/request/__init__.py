"""What a client asks for: its body, read, checked and tokenised."""
