package driver

import (
	"strconv"
	"strings"
)

// NthHolder returns the owner and the token of the i-th holder of g in this process, from 0. The first holder has the
// owner and the token of g. For each other one, the owner gets the suffix "+i", and the token is i higher.
func (g Grant) NthHolder(i int) (owner string, token int64) {
	if owner = g.Owner; i > 0 {
		owner += "+" + strconv.Itoa(i)
	}
	if token = g.Token; token != 0 {
		token += int64(i)
	}
	return owner, token
}

// adoptableMark is the last character of the owner id of a grant that was requested with Request.Adoptable.
const adoptableMark = "*"

// MarkAdoptable returns owner as the id of a grant that another process may adopt.
func MarkAdoptable(owner string) string { return owner + adoptableMark }

// IsAdoptable reports whether owner is the id of a grant that another process may adopt. Such a
// grant serves one holder.
func IsAdoptable(owner string) bool { return strings.HasSuffix(owner, adoptableMark) }

// GrantOf returns the owner and the token of the grant that serves the holder with the given owner and token.
// It is the inverse of Grant.NthHolder.
func GrantOf(owner string, token int64) (grant string, first int64) {
	grant, behind, found := strings.Cut(owner, "+")
	if i, err := strconv.ParseInt(behind, 10, 32); found && err == nil && token != 0 {
		token -= i
	}
	return grant, token
}
