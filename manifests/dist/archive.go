package dist

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"time"
)

// entry is a file in an archive.
type entry struct {
	name string
	mode int64
	data []byte
}

// archive returns a compressed tar of the entries, which does not show when or by whom it was made.
func archive(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	files := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := files.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := files.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := files.Close(); err != nil {
		return nil, err
	}
	err = compressed.Close()
	return out.Bytes(), err
}
