package driver

import (
	"strconv"
	"strings"
)

// Of gives the owner and the token of the i-th holder of g in this process, from 0. The
// first has the owner and token of g, each other one "+i" behind the owner and a token that is i higher.
func (g Grant) Of(i int) (owner string, token int64) {
	if owner = g.Owner; i > 0 {
		owner += "+" + strconv.Itoa(i)
	}
	if token = g.Token; token != 0 {
		token += int64(i)
	}
	return owner, token
}

// adoptable ends the owner id of a grant that was asked for with Request.Adoptable.
const adoptable = "*"

// Adoptable is owner as the id of a grant that another process may adopt.
func Adoptable(owner string) string { return owner + adoptable }

// IsAdoptable reports whether owner is the id of a grant that another process may adopt. Such a
// grant serves one holder.
func IsAdoptable(owner string) bool { return strings.HasSuffix(owner, adoptable) }

// GrantOf gives the owner and the token of the grant that serves a holder with that owner
// and that token: it undoes Grant.Of.
func GrantOf(owner string, token int64) (grant string, first int64) {
	grant, behind, found := strings.Cut(owner, "+")
	if i, err := strconv.ParseInt(behind, 10, 32); found && err == nil && token != 0 {
		token -= i
	}
	return grant, token
}
