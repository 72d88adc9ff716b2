# %% [markdown]
# # A service of asyncio that serves parts of a file
#
# The loop hears of the end of a transfer by a descriptor. No thread waits for it.

# %%
import asyncio

import datapipes as dp
import numpy as np

np.arange(1_000_000, dtype="<u4").tofile("data.u32")


async def answer(file: dp.File, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A request is a line with an offset and a length; the answer is the bytes."""
    while line := await reader.readline():
        offset, length = map(int, line.split())
        buffer = bytearray(length)
        count = await file.pread_async(buffer, offset)
        writer.write(buffer[:count])
        await writer.drain()
    writer.close()


async def ask(port: int, offset: int, length: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{offset} {length}\n".encode())
    found = await reader.readexactly(length)
    writer.close()
    return found


async def main() -> None:
    with dp.open("data.u32") as file:
        server = await asyncio.start_server(lambda *ends: answer(file, *ends), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        # Many clients at once; their reads are under way side by side.
        found = await asyncio.gather(*(ask(port, 4 * i * 10_000, 4_000) for i in range(100)))
        for i, part in enumerate(found):
            assert (np.frombuffer(part, "<u4") == np.arange(1000) + i * 10_000).all()
        server.close()
        await server.wait_closed()
    print(len(found), "answers")


asyncio.run(main())
