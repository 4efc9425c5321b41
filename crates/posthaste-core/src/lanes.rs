//! The relay that owns rows by lanes of keys. So far: from where on a lane is read.

pub(crate) mod cursor;
