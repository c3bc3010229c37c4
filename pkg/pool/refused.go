package pool

import "github.com/redis/go-redis/v9"

// Refused says whether a call failed in a way in which it fails until somebody changes
// something: it is of no use to repeat it soon. A function that Redis does not have is none
// of these, because the next call loads the library again.
func Refused(err error) bool {
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "unknown command")
}
