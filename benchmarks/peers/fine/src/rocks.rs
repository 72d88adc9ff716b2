//! RocksDB by its C interface: a table of items, a row cache, direct reads.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};

use crate::load;
use crate::reader::{Outcome, Reader, Session};

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut c_void;
    fn rocksdb_options_set_create_if_missing(options: *mut c_void, on: c_uchar);
    fn rocksdb_options_set_use_direct_reads(options: *mut c_void, on: c_uchar);
    fn rocksdb_options_set_compression(options: *mut c_void, kind: c_int);
    fn rocksdb_options_set_row_cache(options: *mut c_void, cache: *mut c_void);
    fn rocksdb_options_set_max_open_files(options: *mut c_void, count: c_int);
    fn rocksdb_options_prepare_for_bulk_load(options: *mut c_void);
    fn rocksdb_options_set_block_based_table_factory(options: *mut c_void, table: *mut c_void);
    fn rocksdb_block_based_options_create() -> *mut c_void;
    fn rocksdb_block_based_options_set_block_size(table: *mut c_void, bytes: usize);
    fn rocksdb_block_based_options_set_no_block_cache(table: *mut c_void, on: c_uchar);
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn rocksdb_cache_get_usage(cache: *mut c_void) -> usize;
    fn rocksdb_open(options: *const c_void, name: *const c_char, error: *mut *mut c_char) -> *mut c_void;
    fn rocksdb_close(db: *mut c_void);
    fn rocksdb_writeoptions_create() -> *mut c_void;
    fn rocksdb_writeoptions_disable_WAL(options: *mut c_void, on: c_int);
    fn rocksdb_readoptions_create() -> *mut c_void;
    fn rocksdb_readoptions_set_verify_checksums(options: *mut c_void, on: c_uchar);
    fn rocksdb_writebatch_create() -> *mut c_void;
    fn rocksdb_writebatch_clear(batch: *mut c_void);
    fn rocksdb_writebatch_put(batch: *mut c_void, key: *const c_char, klen: usize, value: *const c_char, vlen: usize);
    fn rocksdb_write(db: *mut c_void, options: *const c_void, batch: *mut c_void, error: *mut *mut c_char);
    fn rocksdb_compact_range(db: *mut c_void, from: *const c_char, flen: usize, to: *const c_char, tlen: usize);
    fn rocksdb_get_pinned(
        db: *mut c_void,
        options: *const c_void,
        key: *const c_char,
        klen: usize,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn rocksdb_pinnableslice_value(slice: *const c_void, len: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut c_void);
    fn rocksdb_batched_multi_get_cf(
        db: *mut c_void,
        options: *const c_void,
        family: *mut c_void,
        count: usize,
        keys: *const *const c_char,
        lengths: *const usize,
        values: *mut *mut c_void,
        errors: *mut *mut c_char,
        sorted: c_uchar,
    );
    fn rocksdb_open_column_families(
        options: *const c_void,
        name: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const *const c_void,
        families: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> *mut c_void;
}

fn failed(error: *mut c_char) -> Outcome<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: RocksDB gives errors as strings that end in a zero; this process ends soon, so it is
    // not freed.
    Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
}

fn open_with(folder: &str, options: *mut c_void) -> Outcome<*mut c_void> {
    let name = CString::new(folder).map_err(|e| e.to_string())?;
    let mut error = std::ptr::null_mut();
    // SAFETY: live options and a string that ends in a zero.
    let db = unsafe { rocksdb_open(options, name.as_ptr(), &mut error) };
    failed(error).map(|()| db)
}

/// Blocks of 4 KiB, not compressed and not cached: the row cache has all the memory. The index
/// stays in memory beside it.
fn table() -> *mut c_void {
    // SAFETY: plain calls on what was just made.
    unsafe {
        let table = rocksdb_block_based_options_create();
        rocksdb_block_based_options_set_block_size(table, 4096);
        rocksdb_block_based_options_set_no_block_cache(table, 1);
        table
    }
}

/// Writes the table of items.
pub fn make(folder: &str, items: u64) -> Outcome<()> {
    // SAFETY: live handles throughout; keys and values are slices of our own that RocksDB copies.
    unsafe {
        let options = rocksdb_options_create();
        rocksdb_options_set_create_if_missing(options, 1);
        rocksdb_options_set_compression(options, 0);
        rocksdb_options_prepare_for_bulk_load(options);
        rocksdb_options_set_block_based_table_factory(options, table());
        let db = open_with(folder, options)?;
        let write = rocksdb_writeoptions_create();
        rocksdb_writeoptions_disable_WAL(write, 1);
        let batch = rocksdb_writebatch_create();
        let mut row = [0; crate::front::ITEM];
        for item in 0..items {
            load::fill(item * row.len() as u64, &mut row);
            let key = item.to_be_bytes();
            rocksdb_writebatch_put(batch, key.as_ptr().cast(), 8, row.as_ptr().cast(), row.len());
            if item % 4096 == 4095 || item + 1 == items {
                let mut error = std::ptr::null_mut();
                rocksdb_write(db, write, batch, &mut error);
                failed(error)?;
                rocksdb_writebatch_clear(batch);
            }
        }
        rocksdb_compact_range(db, std::ptr::null(), 0, std::ptr::null(), 0);
        rocksdb_close(db);
    }
    Ok(())
}

pub struct Rocks {
    db: *mut c_void,
    read: *mut c_void,
    family: *mut c_void,
    cache: *mut c_void,
}

// SAFETY: RocksDB's database, options and caches may be used by all threads.
unsafe impl Sync for Rocks {}

impl Rocks {
    /// A row cache of so many bytes.
    pub fn open(folder: &str, row_cache: usize) -> Outcome<Rocks> {
        // SAFETY: plain calls on what was just made.
        unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_use_direct_reads(options, 1);
            rocksdb_options_set_max_open_files(options, -1);
            rocksdb_options_set_compression(options, 0);
            rocksdb_options_set_block_based_table_factory(options, table());
            let cache = rocksdb_cache_create_lru(row_cache);
            rocksdb_options_set_row_cache(options, cache);
            let name = CString::new(folder).map_err(|e| e.to_string())?;
            let (mut error, mut family) = (std::ptr::null_mut(), std::ptr::null_mut());
            let (families, of_families) = ([c"default".as_ptr()], [options.cast_const()]);
            let (names, of_families) = (families.as_ptr(), of_families.as_ptr());
            let db =
                rocksdb_open_column_families(options, name.as_ptr(), 1, names, of_families, &mut family, &mut error);
            failed(error)?;
            let read = rocksdb_readoptions_create();
            rocksdb_readoptions_set_verify_checksums(read, 0);
            Ok(Rocks { db, read, family, cache })
        }
    }
}

impl Reader for Rocks {
    fn session(&self) -> Outcome<Box<dyn Session + '_>> {
        Ok(Box::new(Getting(self)))
    }

    fn hits_by(&self) -> &'static str {
        "unknown"
    }

    fn warm_up(&self) -> Option<(usize, usize)> {
        Some((600_000, 8))
    }

    fn notes(&self) -> Vec<(&'static str, f64)> {
        // SAFETY: the cache lives as long as this value.
        vec![("row_cache_mib", unsafe { rocksdb_cache_get_usage(self.cache) } as f64 / 1048576.0)]
    }
}

struct Getting<'a>(&'a Rocks);

/// Copies a value out, and gives it back.
fn take(slice: *mut c_void, out: &mut [u8]) -> Outcome<()> {
    if slice.is_null() {
        return Err("a key is not there".into());
    }
    let mut len = 0;
    // SAFETY: a live slice; its bytes are there until it is destroyed, which happens once, here.
    unsafe {
        let value = rocksdb_pinnableslice_value(slice, &mut len);
        if len == out.len() {
            std::ptr::copy_nonoverlapping(value.cast(), out.as_mut_ptr(), len);
        }
        rocksdb_pinnableslice_destroy(slice);
    }
    if len == out.len() { Ok(()) } else { Err(format!("a value of {len} bytes")) }
}

impl Session for Getting<'_> {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Outcome<()> {
        let key = (offset / out.len() as u64).to_be_bytes();
        let mut error = std::ptr::null_mut();
        // SAFETY: live handles; the key is our own.
        let slice = unsafe { rocksdb_get_pinned(self.0.db, self.0.read, key.as_ptr().cast(), 8, &mut error) };
        failed(error)?;
        take(slice, out)
    }

    fn batch(&mut self, offsets: &[u64], len: usize, _depth: usize, out: &mut [u8]) -> Outcome<()> {
        let keys: Vec<[u8; 8]> = offsets.iter().map(|o| (o / len as u64).to_be_bytes()).collect();
        let pointers: Vec<*const c_char> = keys.iter().map(|k| k.as_ptr().cast()).collect();
        let lengths = vec![8; keys.len()];
        let mut values = vec![std::ptr::null_mut(); keys.len()];
        let mut errors = vec![std::ptr::null_mut(); keys.len()];
        // SAFETY: live handles, and arrays of as many elements as are said.
        unsafe {
            rocksdb_batched_multi_get_cf(
                self.0.db,
                self.0.read,
                self.0.family,
                keys.len(),
                pointers.as_ptr(),
                lengths.as_ptr(),
                values.as_mut_ptr(),
                errors.as_mut_ptr(),
                0,
            );
        }
        errors.into_iter().try_for_each(failed)?;
        values.into_iter().zip(out.chunks_exact_mut(len)).try_for_each(|(slice, out)| take(slice, out))
    }
}
