fn main() -> anyhow::Result<()> {
    peers_schema::embed("obix")
}
