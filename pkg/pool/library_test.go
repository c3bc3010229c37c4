package pool

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

// textOfThisLibrary is the hash of what is in lua in the version thisLibrary.
const textOfThisLibrary = "eb2b3b5023d6efb1d1540a9e9d637fa0775303a74a0579f5926adcb6056259f2"

// Parts of two releases share a Redis while one is upgraded to the other. With another text under the same version, one
// would call the other's functions.
func TestVersionIsRaisedWithTheText(t *testing.T) {
	if hash := fmt.Sprintf("%x", sha256.Sum256([]byte(libraryText))); hash != textOfThisLibrary {
		t.Errorf("what is in lua has changed: raise thisLibrary, then put this hash here: %s", hash)
	}
}
