"""Runs several coroutines at the same time."""

import asyncio
from collections.abc import Coroutine


async def first_of(*coroutines: Coroutine[object, object, None]) -> None:
    """Runs all of them until the first one ends, and cancels the others. Raises what that one raises."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
