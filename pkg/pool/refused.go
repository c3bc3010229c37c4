package pool

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"libra.dev/libra/pkg/redisconn"
)

// Refused says whether a call keeps failing until somebody changes something, so that
// retrying soon is no use: Redis refuses it, Redis cannot be asked because of the credentials
// or its certificate, or no Pool accepts the call. A function that Redis does not have is
// none of these, because the next call loads the library again.
func Refused(err error) bool {
	var none *invalid
	return redis.IsAuthError(err) || redisconn.NotPermitted(err) || redis.HasErrorPrefix(err, "unknown command") ||
		redisconn.Unusable(err) || errors.As(err, &none)
}

// invalid is the error of a call that no Pool accepts.
type invalid struct{ error }

func (e *invalid) Unwrap() error { return e.error }

func invalidf(format string, args ...any) error { return &invalid{fmt.Errorf(format, args...)} }
