"""Announces a Wyoming server in the local network, where Home Assistant finds it (multicast DNS)."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

from zeroconf import Error
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from voxport.bundle.errors import UsageError

SERVICE = "_wyoming._tcp.local."
GROUP = "224.0.0.251"  # of multicast DNS


@asynccontextmanager
async def announced(address: str, port: int) -> AsyncIterator[None]:
    """Announces the address that the server listens on, while it is open. Raises UsageError."""
    name = f"voxport on {socket.gethostname().partition('.')[0]}.{SERVICE}"
    try:
        own = _main_address() if ip_address(address).is_unspecified else address
        async with AsyncZeroconf(interfaces=[own]) as network:
            service = AsyncServiceInfo(SERVICE, name, port, parsed_addresses=[own])
            await (await network.async_register_service(service, allow_name_change=True))
            yield
    except (OSError, Error) as error:
        raise UsageError(f"wyoming_announce: {error}", field="wyoming_announce") from None


def _main_address() -> str:
    """The address from which this machine sends to the local network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((GROUP, 5353))
        return str(probe.getsockname()[0])
