package report

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// version is the first byte of a record. A record of another version is not counted.
	version = 1

	// MaxFunctions bounds a record: the functions with the most requests are kept.
	MaxFunctions = 16384
	// maxText is the most bytes that a record takes before compression: names as long as they may be, and
	// all that is counted.
	maxText int64 = MaxFunctions * (2*maxName + int64(Fields)*binary.MaxVarintLen64)
	maxName       = 256
)

// Encode returns a record in its wire format: the version and then, compressed, the number of fields,
// and each function's namespace, name and fields.
func Encode(r Record) ([]byte, error) {
	functions := make([]types.NamespacedName, 0, len(r))
	for function := range r {
		functions = append(functions, function)
	}
	if len(functions) > MaxFunctions {
		slices.SortFunc(functions, func(a, b types.NamespacedName) int { return cmp.Compare(r[b][Requests], r[a][Requests]) })
		functions = functions[:MaxFunctions]
	}
	// Similar names side by side compress better.
	slices.SortFunc(functions, func(a, b types.NamespacedName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	var encoded bytes.Buffer
	encoded.WriteByte(version)
	compressed, err := flate.NewWriter(&encoded, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	text := binary.AppendUvarint(nil, uint64(Fields))
	for _, function := range functions {
		for _, name := range []string{function.Namespace, function.Name} {
			text = binary.AppendUvarint(text, uint64(len(name)))
			text = append(text, name...)
		}
		for _, n := range r[function] {
			text = binary.AppendVarint(text, n)
		}
		if _, err := compressed.Write(text); err != nil {
			return nil, err
		}
		text = text[:0]
	}
	_, err = compressed.Write(text) // of a record without functions
	if err := errors.Join(err, compressed.Close()); err != nil {
		return nil, err
	}
	return encoded.Bytes(), nil
}

// Decode adds an encoded record to another, all of it or nothing. It skips fields that this version does
// not know.
func Decode(encoded []byte, into Record) error {
	if len(encoded) == 0 || encoded[0] != version {
		return fmt.Errorf("the record begins with %.1q, want version %d", encoded, version)
	}
	text := bufio.NewReader(io.LimitReader(flate.NewReader(bytes.NewReader(encoded[1:])), maxText))
	fields, err := binary.ReadUvarint(text)
	if err != nil {
		return fmt.Errorf("reading the record's number of fields: %w", err)
	}
	if fields > 1024 {
		return fmt.Errorf("the record has %d fields for each function, want at most 1024", fields)
	}
	decoded := Record{}
	for {
		function, sums, err := decodeFunction(text, int(fields))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading function %d of the record: %w", len(decoded)+1, err)
		}
		if len(decoded) == MaxFunctions {
			return fmt.Errorf("the record has more than %d functions", MaxFunctions)
		}
		decoded.Add(function, &sums)
	}
	for function, sums := range decoded {
		into.Add(function, sums)
	}
	return nil
}

// decodeFunction returns io.EOF if there are no more functions.
func decodeFunction(text *bufio.Reader, fields int) (function types.NamespacedName, s Sums, err error) {
	if _, err := text.Peek(1); err != nil {
		return function, s, err
	}
	for _, name := range []*string{&function.Namespace, &function.Name} {
		if *name, err = decodeName(text); err != nil {
			return function, s, cut(err)
		}
	}
	for i := range fields {
		n, err := binary.ReadVarint(text)
		if err != nil {
			return function, s, cut(err)
		}
		if n < 0 {
			return function, s, fmt.Errorf("field %d of %s is %d, want 0 or more", i, function, n)
		}
		if i < Fields {
			s[i] = n
		}
	}
	return function, s, nil
}

func decodeName(text *bufio.Reader) (string, error) {
	length, err := binary.ReadUvarint(text)
	if err != nil {
		return "", err
	}
	if length == 0 || length > maxName {
		return "", fmt.Errorf("a name has %d bytes, want 1 to %d", length, maxName)
	}
	name := make([]byte, length)
	_, err = io.ReadFull(text, name)
	return string(name), err
}

// cut turns the end of the text, in the middle of a function, into io.ErrUnexpectedEOF.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
