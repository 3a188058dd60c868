"""What the tests of deploy/ share: manifests as Kustomize makes them, and pods as processes."""
