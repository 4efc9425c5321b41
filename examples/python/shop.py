"""A shop that writes an order and its event in one transaction, with psycopg.

    pip install -r requirements.txt
    DATABASE_URL=postgres://… python shop.py 42 1990 7 2500

places the orders 42 and 7. Whoever is to hear of them is told by `posthaste relay`. The function posthaste_write is created by
`posthaste migrate up --write-function`.
"""

import json
import os
import sys

import psycopg


def place_order(connection: psycopg.Connection, order: int, total: int) -> str:
    """Places an order, and returns the id of its event. Both are stored, or neither is."""
    with connection.transaction():
        connection.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", (order, total))
        row = connection.execute(
            """
            SELECT posthaste_write(
                'OrderPlaced', %(payload)s,
                aggregate_type => 'Order', aggregate_id => %(order)s, headers => %(headers)s
            )
            """,
            {
                "payload": json.dumps({"order": order, "total": total}),
                "order": str(order),
                "headers": json.dumps({"service": "shop"}),
            },
        ).fetchone()
    return row[0]


def wake_relays(connection: psycopg.Connection) -> None:
    """Has relays look at once. After the commit, and on its own: within the transaction, writers would queue for it."""
    connection.execute("NOTIFY posthaste_outbox_event")


def main() -> None:
    arguments = [int(argument) for argument in sys.argv[1:]]
    # Each statement is its own transaction, unless one is begun.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, total BIGINT NOT NULL)")
        for order, total in zip(arguments[::2], arguments[1::2]):
            try:
                print(f"order {order}: event {place_order(connection, order, total)}")
            except psycopg.errors.UniqueViolation:
                print(f"order {order}: placed before")
        wake_relays(connection)


if __name__ == "__main__":
    main()
