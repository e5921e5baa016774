package sqllock_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/locktest"
	"github.com/holdfast-go/holdfast/sqllock"
)

// odd are sessions that are set up in a way that programs get wrong.
var odd = []database{
	{
		name: "MariaDB, odd sessions", dialect: sqllock.MySQL,
		settings: "&autocommit=0&tx_isolation=%27SERIALIZABLE%27&time_zone=%27%2B05:30%27" +
			"&sql_mode=%27ANSI,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH%27",
	},
	{
		name: "MariaDB, dirty reads", dialect: sqllock.MySQL,
		settings: "&tx_isolation=%27READ-UNCOMMITTED%27&clientFoundRows=true&parseTime=true&loc=Local",
	},
	{
		name: "MySQL, odd sessions", dialect: sqllock.MySQL, second: true,
		settings: "&autocommit=0&transaction_isolation=%27SERIALIZABLE%27&time_zone=%27%2B05:30%27" +
			"&sql_mode=%27ANSI,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES,NO_UNSIGNED_SUBTRACTION,PAD_CHAR_TO_FULL_LENGTH%27",
	},
	{
		name: "PostgreSQL, odd sessions", dialect: sqllock.PostgreSQL,
		settings: " default_transaction_isolation=serializable timezone=Asia/Kolkata standard_conforming_strings=off datestyle=German",
	},
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, b := range append(append([]database(nil), kinds...), odd...) {
		t.Run(b.name, func(t *testing.T) {
			if testing.Short() && (b.settings != "" || b.dialect == sqllock.PostgreSQL) {
				t.Skip("-short goes through the suite on MariaDB and SQLite; that of package postgres runs on PostgreSQL")
			}
			t.Parallel()
			locktest.Run(t, locktest.Harness{Start: func(t testing.TB) locktest.Service { return newRig(t, b).service() }})
		})
	}
}
