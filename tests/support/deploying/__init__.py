"""What the tests of deploy/ share: manifests as Kustomize makes them, containers as KubeRay starts them, and processes."""
