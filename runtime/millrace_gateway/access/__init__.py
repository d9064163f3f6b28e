"""Who a client is, what it may use, and how much: keys, limits, fairness, and the record of use."""
