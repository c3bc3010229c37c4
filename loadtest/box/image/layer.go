package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Copy is a file or a folder of this machine and the place where it goes in an image.
type Copy struct {
	From string
	// To is an absolute path; the content of a folder goes into it.
	To string
	// Skip names files and folders to leave out, at any depth.
	Skip []string
}

// Layer is an uncompressed tar on this machine's disk. It is a v1.Layer that returns the same tar
// as its compressed form, because a layer that never leaves the machine need not be compressed.
type Layer struct {
	path string
	hash v1.Hash
	size int64
}

// WriteLayer writes the copies to a tar at path. Everything in it belongs to root and dates from
// 1970, so that the same content has the same digest everywhere.
func WriteLayer(path string, copies ...Copy) (Layer, error) {
	f, err := os.Create(path)
	if err != nil {
		return Layer{}, err
	}
	defer f.Close()
	w := layerWriter{tar: tar.NewWriter(f), made: map[string]bool{}}
	for _, c := range copies {
		if err := w.add(c); err != nil {
			return Layer{}, fmt.Errorf("layer %s: %w", path, err)
		}
	}
	if err := w.tar.Close(); err != nil {
		return Layer{}, err
	}
	if err := f.Close(); err != nil {
		return Layer{}, err
	}
	return OpenLayer(path)
}

// OpenLayer returns the layer that an earlier WriteLayer left at path.
func OpenLayer(path string) (Layer, error) {
	f, err := os.Open(path)
	if err != nil {
		return Layer{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return Layer{}, fmt.Errorf("read layer %s: %w", path, err)
	}
	return Layer{path: path, hash: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}, size: n}, nil
}

func (l Layer) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l Layer) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l Layer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l Layer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
func (l Layer) Size() (int64, error)                 { return l.size, nil }
func (l Layer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }

// files calls visit for each regular file of the layer, with its absolute path.
func (l Layer) files(visit func(name string, content *io.SectionReader) error) error {
	f, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", l.path, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		// tar reads no further than the header.
		at, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		if err := visit("/"+h.Name, io.NewSectionReader(f, at, h.Size)); err != nil {
			return err
		}
	}
}

type layerWriter struct {
	tar  *tar.Writer
	made map[string]bool // folders that have an entry
}

func (w layerWriter) add(c Copy) error {
	if !path.IsAbs(c.To) {
		return fmt.Errorf("the copy of %s goes to %q, which must be an absolute path", c.From, c.To)
	}
	return filepath.WalkDir(c.From, func(from string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if from != c.From && slices.Contains(c.Skip, e.Name()) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(c.From, from)
		if err != nil {
			return err
		}
		to := strings.TrimPrefix(path.Join(c.To, filepath.ToSlash(rel)), "/")
		if e.IsDir() && rel == "." {
			return w.parents(to + "/.")
		}
		if err := w.parents(to); err != nil {
			return err
		}
		return w.entry(from, to, e)
	})
}

// parents makes the folders above name that the copies themselves do not contain.
func (w layerWriter) parents(name string) error {
	for i, r := range name {
		if r != '/' || w.made[name[:i]] {
			continue
		}
		w.made[name[:i]] = true
		if err := w.tar.WriteHeader(header(&tar.Header{Typeflag: tar.TypeDir, Name: name[:i] + "/", Mode: 0o755})); err != nil {
			return err
		}
	}
	return nil
}

func (w layerWriter) entry(from, to string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	var link string
	switch {
	case info.Mode().IsRegular():
	case info.IsDir():
		w.made[to] = true
		to += "/"
	case info.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(from); err != nil {
			return err
		}
	default:
		return nil // a container gets its devices and sockets from the runtime
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = to
	h.Mode = mode(info)
	if err := w.tar.WriteHeader(header(h)); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w.tar, f)
	return err
}

// mode returns as much of a file's mode as Git keeps: whether it is executable. The rest depends on
// the umask at checkout, except for folders that anybody may write to.
func mode(info fs.FileInfo) int64 {
	switch m := info.Mode(); {
	case m&fs.ModeSymlink != 0:
		return 0o777
	case m.IsDir() && m&fs.ModeSticky != 0:
		return 0o1777
	case m.IsDir() || m&0o100 != 0:
		return 0o755
	}
	return 0o644
}

// header removes from h everything that differs between machines.
func header(h *tar.Header) *tar.Header {
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
	h.Format = tar.FormatPAX
	return h
}
