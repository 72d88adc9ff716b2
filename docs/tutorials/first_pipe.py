# %% [markdown]
# # A first pipe: from a file into an array
#
# Run it where a few MiB may be written: `python first_pipe.py`.

# %%
import datapipes as dp
import numpy as np

numbers = np.arange(1_000_000, dtype="<f8")

with dp.open("numbers.bin", "w") as file:
    file.write(numbers)
    file.fsync()  # It would survive a power failure now.

# %% [markdown]
# A Buffer is memory for transfers. An array over it is a view, without a copy.

# %%
with dp.open("numbers.bin") as file:
    buffer = file.read(8, 80)  # 80 bytes at offset 8
    print(np.frombuffer(buffer, "<f8"))

    array = np.empty(1_000_000, "<f8")
    file.readinto(array)  # into anything with the buffer protocol
    assert (array == numbers).all()

    print(file.report())  # by which primitive, and how many bytes bounced

# %% [markdown]
# Which way the bytes go, and why not another way:

# %%
print(dp.explain("ssd:numbers.bin", "dram:8M"))

# %% [markdown]
# Errors are those that Python people catch, and say more:

# %%
try:
    dp.open("missing.bin")
except FileNotFoundError as error:
    print(error, error.kind, error.errno)
