"""The stand-in provider as a program: `python -m turnwise.testing.local_provider`."""

import argparse
import asyncio
import contextlib
import sys

from turnwise.testing.local_provider.server import LocalProvider


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A stand-in for a model provider on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--token-delay-s", type=float, default=0.02, help="pause before each token")
    parser.add_argument("--api-key", help="refuse requests with another")
    options = parser.parse_args()
    provider = LocalProvider(options.token_delay_s, api_key=options.api_key, port=options.port)

    def show_url() -> None:
        sys.stdout.write(f"OPENAI_BASE_URL={provider.base_url}\n")
        sys.stdout.flush()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(provider.serve(show_url))


if __name__ == "__main__":
    main()
