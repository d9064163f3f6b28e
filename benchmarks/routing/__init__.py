"""How gateways use the replicas' prefix caches: simulated replicas, seeded chats, virtual time."""
