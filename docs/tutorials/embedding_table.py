# %% [markdown]
# # Rows of an embedding table that is larger than memory

# %%
import datapipes as dp
import numpy as np

rows, width = 100_000, 64
np.arange(rows * width, dtype="<f4").reshape(rows, width).tofile("table.f32")  # 25 MB

# %% [markdown]
# `cache` is all the memory that the table takes. Only what is asked for is read: rows, not pages.

# %%
table = dp.rows("table.f32", "float32", width, cache="4M")
print(table.shape, table.dtype)

ids = np.random.default_rng(1).zipf(1.3, 10_000) % rows
batch = table[ids]
assert batch.shape == (10_000, width) and (batch[:, 0] == ids * width).all()

# %% [markdown]
# An array can be used again, and the counters say how well the cache does:

# %%
table.gather(ids, out=batch)
metrics = table.metrics()
print({name: value for name, value in metrics.items() if isinstance(value, int)})

# %% [markdown]
# In a DataLoader of torch, a batch is one gather:
#
#     from datapipes.torch import RowsDataset
#     dataset = RowsDataset(table)
#     loader = DataLoader(dataset, batch_size=1024, shuffle=True, collate_fn=dataset.collate)
