package pool

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/redisconn"
)

// Refused says whether a call failed in a way in which it fails until somebody changes
// something: it is of no use to repeat it soon. That is what Redis refuses, what it cannot be
// asked for because of the credentials or its certificate, and what no Pool takes. A function
// that Redis does not have is none of these, because the next call loads the library again.
func Refused(err error) bool {
	var none *invalid
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "unknown command") ||
		redisconn.Unusable(err) || errors.As(err, &none)
}

// invalid is an error of a call that no Pool takes.
type invalid struct{ error }

func (e *invalid) Unwrap() error { return e.error }

func invalidf(format string, args ...any) error { return &invalid{fmt.Errorf(format, args...)} }
