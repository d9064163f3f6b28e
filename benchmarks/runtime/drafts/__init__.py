"""What drafts gain and cost: texts that are known in advance, a model that writes them, and the rates."""
