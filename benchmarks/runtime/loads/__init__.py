"""Loads other than a burst of equal requests: chats, turns, waves, a prompt beside streams. All over HTTP."""
