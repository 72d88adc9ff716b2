# %% [markdown]
# # Sort a file that is larger than the memory for it

# %%
import datapipes as dp
import numpy as np

numbers = np.random.default_rng(1).integers(0, 1 << 63, 4_000_000, np.uint64)
numbers.tofile("numbers.u64")  # 32 MB

# %%
steps = []
report = dp.sort(
    "numbers.u64",
    "sorted.u64",
    format="u64",
    memory="16M",
    progress=lambda total, read, written: steps.append((total, read, written)),
)
print(report)
assert (np.fromfile("sorted.u64", np.uint64) == np.sort(numbers)).all()

# %% [markdown]
# Lines are sorted by keys, as `sort -k` does:

# %%
with open("people.txt", "w") as out:
    out.write("turing 41\nlovelace 36\nhopper 85\n")
dp.sort("people.txt", "by_age.txt", keys=["2,2n"])
print(open("by_age.txt").read())
assert open("by_age.txt").read() == "lovelace 36\nturing 41\nhopper 85\n"
