# %% [markdown]
# # Load a model
#
# This page writes a small model by hand. Yours comes from `safetensors.numpy.save_file`, or from
# the net.

# %%
import json

import datapipes as dp
import numpy as np

layers = {f"layer.{i}.weight": np.full((256, 256), i, "<f4") for i in range(8)}
header, at = {}, 0
for name, array in layers.items():
    header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
    at += array.nbytes
text = json.dumps(header).encode()
with open("model.safetensors", "wb") as out:
    out.write(len(text).to_bytes(8, "little") + text)
    for array in layers.values():
        out.write(array.tobytes())

# %% [markdown]
# One transfer reads all tensors, past the page cache where the file is not in it. They stay valid
# as long as they are referenced. With `framework="torch"` they are tensors of torch.

# %%
model = dp.load_file("model.safetensors")
print(model.report())
assert all((model[name] == array).all() for name, array in layers.items())

# %% [markdown]
# Shards (a list of them, or their "model.safetensors.index.json") are given one after the other, and a shard's memory is free when its last tensor is gone:

# %%
total = 0
with dp.stream(["model.safetensors"]) as shards:
    for name, array in shards:
        total += array.nbytes
print(total, "bytes;", shards.report())

# %% [markdown]
# A file that was cut off is told before anything is made of it:

# %%
with dp.open("model.safetensors", "r+") as file:
    file.truncate(file.size() - 1)
try:
    dp.load_file("model.safetensors")
except dp.Corrupt as error:
    print(error)
else:
    raise SystemExit("a file that was cut off was loaded")
