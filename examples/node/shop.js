// A shop that writes an order and its event in one transaction, with pg.
//
//     npm ci
//     DATABASE_URL=postgres://… node shop.js 42 1990 7 2500
//
// places the orders 42 and 7. Whoever is to hear of them is told by `posthaste relay`. The function posthaste_write is created by
// `posthaste migrate up --write-function`.

import pg from 'pg';

// Places an order, and returns the id of its event. Both are stored, or neither is.
async function placeOrder(client, order, total) {
  await client.query('BEGIN');
  try {
    await client.query('INSERT INTO orders (id, total) VALUES ($1, $2)', [order, total]);
    const { rows } = await client.query(
      `SELECT posthaste_write(
         'OrderPlaced', $1, aggregate_type => 'Order', aggregate_id => $2, headers => $3
       ) AS id`,
      [JSON.stringify({ order, total }), String(order), { service: 'shop' }],
    );
    await client.query('COMMIT');
    return rows[0].id;
  } catch (error) {
    await client.query('ROLLBACK');
    throw error;
  }
}

// Has relays look at once. After the commit, and on its own: within the transaction, writers would queue for it.
async function wakeRelays(client) {
  await client.query('NOTIFY posthaste_outbox_event');
}

const UNIQUE_VIOLATION = '23505';

const numbers = process.argv.slice(2).map(Number);
const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  await client.query('CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, total BIGINT NOT NULL)');
  for (let i = 0; i + 1 < numbers.length; i += 2) {
    const [order, total] = [numbers[i], numbers[i + 1]];
    try {
      console.log(`order ${order}: event ${await placeOrder(client, order, total)}`);
    } catch (error) {
      if (error.code !== UNIQUE_VIOLATION) throw error;
      console.log(`order ${order}: placed before`);
    }
  }
  await wakeRelays(client);
} finally {
  await client.end();
}
