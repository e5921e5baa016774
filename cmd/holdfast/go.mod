module github.com/holdfast-go/holdfast/cmd/holdfast

go 1.26.0

require (
	github.com/creack/pty v1.1.24
	github.com/holdfast-go/holdfast v0.0.0
	github.com/holdfast-go/holdfast/postgres v0.0.0
	github.com/rogpeppe/go-internal v1.16.0
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.9
	golang.org/x/sys v0.49.0
)

require (
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.12.0 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/sync v0.23.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	golang.org/x/tools v0.51.0 // indirect
)

replace github.com/holdfast-go/holdfast => ../..

replace github.com/holdfast-go/holdfast/postgres => ../../postgres
