"""Many replicas behind one address: the Ray Serve app, its scaling, and the manifests."""
