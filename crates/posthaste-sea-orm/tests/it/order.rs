//! An entity as users have them.

use sea_orm::ActiveValue::Set;
use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "orders")]
pub(crate) struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: i64,
    pub total: i64,
}

#[derive(Clone, Copy, Debug, EnumIter, DeriveRelation)]
pub(crate) enum Relation {}

impl ActiveModelBehavior for ActiveModel {}

pub(crate) async fn place(db: &impl ConnectionTrait, id: i64) {
    ActiveModel { id: Set(id), total: Set(1990) }.insert(db).await.unwrap();
}

/// The ids of all orders.
pub(crate) async fn placed(db: &impl ConnectionTrait) -> Vec<i64> {
    let mut ids: Vec<_> = Entity::find().all(db).await.unwrap().iter().map(|order| order.id).collect();
    ids.sort_unstable();
    ids
}
