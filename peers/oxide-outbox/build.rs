fn main() -> anyhow::Result<()> {
    peers_schema::embed("outbox-postgres")
}
