package pool

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// newerLibraryError says that Redis has a library for newer binaries.
type newerLibraryError struct{ loaded int }

func (e newerLibraryError) Error() string {
	return fmt.Sprintf("the library libra in Redis has version %d, this binary works with version %d only: upgrade it", e.loaded, libraryVersion)
}

// Refused says whether a call failed in a way in which it fails until somebody changes
// something: it is of no use to repeat it soon. A function that Redis does not have is none
// of these, because the next call loads the library again.
func Refused(err error) bool {
	var newer newerLibraryError
	return errors.As(err, &newer) || redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "unknown command")
}
