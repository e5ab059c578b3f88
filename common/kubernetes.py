"""`python -m common.kubernetes EXAMPLE [flags]`: prints a run's Kubernetes manifests."""

from common.launch.kubernetes import main

if __name__ == "__main__":
    main()
