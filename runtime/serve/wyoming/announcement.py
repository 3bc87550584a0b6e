"""Announces a Wyoming server in the local network, where Home Assistant finds it (multicast DNS)."""

import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_address

from zeroconf import Error, get_all_addresses
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from voxport.bundle.errors import UsageError

SERVICE = "_wyoming._tcp.local."


@asynccontextmanager
async def announced(hosts: Iterable[str], port: int) -> AsyncIterator[None]:
    """Announces the addresses that the server listens on, while it is open. Raises UsageError."""
    own = (get_all_addresses() if ip_address(host).is_unspecified else [host] for host in hosts)
    addresses = sorted({address for found in own for address in found})
    reachable = [each for each in addresses if not ip_address(each).is_loopback] or addresses
    name = f"voxport on {socket.gethostname()}.{SERVICE}".replace(".local._", "._")
    service = AsyncServiceInfo(SERVICE, name, port, parsed_addresses=reachable)
    try:
        async with AsyncZeroconf(interfaces=reachable) as network:
            await (await network.async_register_service(service, allow_name_change=True))
            yield
    except (OSError, Error) as error:
        raise UsageError(f"wyoming_announce: {error}", field="wyoming_announce") from None
