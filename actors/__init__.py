"""What lives on the cluster: sessions, their actors and handles, inference. The only folder that imports ray."""
