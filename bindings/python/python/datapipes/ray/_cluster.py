"""The way to a cluster of Ray."""

from __future__ import annotations

import os
import socket
from typing import Any

from .._errors import InvalidInput, PermissionDenied, Unavailable
from ._turns import ray

_REACH = 10.0
"""Seconds that the head of a cluster may take to accept a connection."""


def join(address: str | None = None, **settings: Any) -> None:
    """Join a cluster, where the process is in none yet: of this address or RAY_ADDRESS, or a new one."""
    if ray.is_initialized():
        return
    _reach(address if address is not None else os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=address, **settings)
    except (ValueError, ImportError) as error:
        # Of an address that makes no sense, or that needs a part of Ray which is not installed.
        meant = f"{address!r}" if address is not None else f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS', '')!r}"
        raise InvalidInput(
            f"sort: the cluster {meant}: {error}",
            operation="sort",
            advice='give HOST:PORT of its head, or "auto" for the one that runs on this machine',
        ) from error
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
        if _is_of_token(error):
            raise PermissionDenied(
                f"sort: {_called(address)} wants its token, and this process has none or another one",
                operation="sort",
                advice="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token of the cluster "
                "(`ray get-auth-token` on its head)",
            ) from error
        if isinstance(error, ConnectionError):
            raise _absent(address, error) from error
        raise Unavailable(f"sort: {_called(address)}: {_last_line(error)}", operation="sort") from error


def _is_of_token(error: BaseException | None) -> bool:
    """Whether the cluster refused this process: Ray tries for a while, and gives the last failure as text."""
    while error is not None:
        if isinstance(error, ray.exceptions.AuthenticationError) or "AuthenticationError" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _called(address: str | None) -> str:
    named = address if address is not None else os.environ.get("RAY_ADDRESS")
    return f"the cluster at {named}" if named else "the cluster of this machine"


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _reach(address: str) -> None:
    """Fail soon where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # Another name, such as "auto", or nothing that Ray takes.
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH).close()
    except (OSError, OverflowError) as error:
        raise _absent(address, error) from None


def _absent(address: str | None, error: object) -> Unavailable:
    return Unavailable(
        f"sort: no cluster answers at {address or 'the address of this machine'}: {error}",
        operation="sort",
        advice="start one by `ray start --head`, or leave the address out for a cluster of this machine",
    )
