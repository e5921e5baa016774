module github.com/holdfast-go/holdfast/verify

go 1.26.0

require (
	github.com/holdfast-go/holdfast v0.0.0
	pgregory.net/rapid v1.3.0
)

replace github.com/holdfast-go/holdfast => ../
