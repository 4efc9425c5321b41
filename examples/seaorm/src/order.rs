//! An order, as it is stored.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "orders")]
pub(crate) struct Model {
    #[sea_orm(primary_key)]
    pub id: i64,
    pub customer: String,
    pub total: i64,
    pub cancelled: bool,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
