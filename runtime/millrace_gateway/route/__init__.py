"""Which service a request means, and which of its replicas takes it."""
