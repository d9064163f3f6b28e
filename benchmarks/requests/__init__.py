"""What a request's grammar and sampling cost the replica."""
