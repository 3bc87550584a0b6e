"""Runs several coroutines at the same time."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


async def first_of(*coroutines: Coroutine[object, object, Result]) -> Result:
    """The result of the one that ends first; the others are cancelled. Raises what that one raises."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
