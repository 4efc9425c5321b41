//! An insert as diesel takes it.

use std::marker::PhantomData;

use diesel::QueryResult;
use diesel::backend::{Backend, DieselReserveSpecialization};
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::serialize::ToSql;
use diesel::sql_types::{BigInt, Binary, HasSqlType, Nullable, Text};
use posthaste_sql::driver::{Insert, Parameter};

/// The most parameters of a statement that stays prepared. There are few sizes of statements, but the large ones are long, and rare.
const MOST_KEPT: usize = 128;

/// What is said of a parameter that is new.
const OTHER_VERSION: &str =
    "posthaste-sql binds a kind of value that this posthaste-diesel does not know: use versions that belong together";

/// SQL with its placeholders, and what to bind; and what it returns, where it returns something.
pub struct Statement<'r, T = ()>(Insert<'r>, PhantomData<T>);

impl<'r> Statement<'r> {
    pub(crate) fn new(insert: Insert<'r>) -> Self {
        Self(insert, PhantomData)
    }

    /// The same, which returns that.
    pub(crate) fn returning<T>(self) -> Statement<'r, T> {
        Statement(self.0, PhantomData)
    }
}

impl<DB, T> QueryFragment<DB> for Statement<'_, T>
where
    DB: Backend + DieselReserveSpecialization + HasSqlType<Text> + HasSqlType<Binary> + HasSqlType<BigInt>,
    str: ToSql<Text, DB>,
    [u8]: ToSql<Binary, DB>,
    i64: ToSql<BigInt, DB>,
    Option<&'static str>: ToSql<Nullable<Text>, DB>,
    Option<&'static [u8]>: ToSql<Nullable<Binary>, DB>,
    Option<i64>: ToSql<Nullable<BigInt>, DB>,
{
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        if self.0.parameters.len() > MOST_KEPT {
            out.unsafe_to_cache_prepared();
        }
        out.push_sql(&self.0.sql);
        for parameter in &self.0.parameters {
            match parameter {
                Parameter::Text(Some(text)) => out.push_bind_param_value_only::<Text, str>(text)?,
                Parameter::Text(None) => out.push_bind_param_value_only::<Nullable<Text>, Option<&str>>(&None)?,
                Parameter::Bytes(Some(bytes)) => out.push_bind_param_value_only::<Binary, [u8]>(bytes)?,
                Parameter::Bytes(None) => out.push_bind_param_value_only::<Nullable<Binary>, Option<&[u8]>>(&None)?,
                Parameter::Number(Some(number)) => out.push_bind_param_value_only::<BigInt, i64>(number)?,
                Parameter::Number(None) => out.push_bind_param_value_only::<Nullable<BigInt>, Option<i64>>(&None)?,
                _ => return Err(diesel::result::Error::SerializationError(OTHER_VERSION.into())),
            }
        }
        Ok(())
    }
}

/// It is known by its text.
impl<T> QueryId for Statement<'_, T> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<T> Query for Statement<'_, T> {
    type SqlType = T;
}
