//! Writes what a variant holds, without the variant's name.

use serde::ser::{
    Error, Impossible, Serialize, SerializeMap, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleVariant, Serializer,
};

/// Why an enum cannot be a family.
pub(super) const NOT_PLAIN: &str = "a family of events must be an enum in the form that serde derives by default; \
                                    remove tag, content, untagged, from and into from its serde attributes";

/// An enum that is written as what its variant holds.
pub(super) struct Bare<'a, T>(pub(super) &'a T);

impl<T: Serialize> Serialize for Bare<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Untag(serializer))
    }
}

/// Takes an enum only, and leaves out which variant it is.
struct Untag<S>(S);

macro_rules! refuse {
    ($($method:ident($($argument:ty),*);)*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<S::Ok, S::Error> {
            Err(S::Error::custom(NOT_PLAIN))
        }
    )*};
}

macro_rules! refuse_compound {
    ($($method:ident($($argument:ty),*) -> $compound:ty;)*) => {$(
        fn $method(self, $(_: $argument),*) -> Result<$compound, S::Error> {
            Err(S::Error::custom(NOT_PLAIN))
        }
    )*};
}

impl<S: Serializer> Serializer for Untag<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Impossible<S::Ok, S::Error>;
    type SerializeTuple = Impossible<S::Ok, S::Error>;
    type SerializeTupleStruct = Impossible<S::Ok, S::Error>;
    type SerializeTupleVariant = Content<S::SerializeTuple>;
    type SerializeMap = Impossible<S::Ok, S::Error>;
    type SerializeStruct = Impossible<S::Ok, S::Error>;
    type SerializeStructVariant = Content<S::SerializeStruct>;

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<S::Ok, S::Error> {
        self.0.serialize_map(Some(0))?.end()
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(self.0)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.0.serialize_struct(variant, len).map(Content)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.0.serialize_tuple(len).map(Content)
    }

    refuse! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_f32(f32);
        serialize_f64(f64);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
    }

    refuse_compound! {
        serialize_seq(Option<usize>) -> Self::SerializeSeq;
        serialize_tuple(usize) -> Self::SerializeTuple;
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct;
        serialize_map(Option<usize>) -> Self::SerializeMap;
        serialize_struct(&'static str, usize) -> Self::SerializeStruct;
    }

    fn serialize_some<T: Serialize + ?Sized>(self, _: &T) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom(NOT_PLAIN))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, _: &T) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom(NOT_PLAIN))
    }
}

/// What a variant holds, as the struct or tuple that it would be by itself.
struct Content<C>(C);

impl<C: SerializeStruct> SerializeStructVariant for Content<C> {
    type Ok = C::Ok;
    type Error = C::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), C::Error> {
        self.0.serialize_field(key, value)
    }

    fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
        self.0.skip_field(key)
    }

    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}

impl<C: SerializeTuple> SerializeTupleVariant for Content<C> {
    type Ok = C::Ok;
    type Error = C::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        self.0.serialize_element(value)
    }

    fn end(self) -> Result<C::Ok, C::Error> {
        self.0.end()
    }
}
