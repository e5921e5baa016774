module example.com/shop

go 1.26.0

require github.com/holdfast-go/holdfast v0.1.0

replace github.com/holdfast-go/holdfast => ../../../../..
