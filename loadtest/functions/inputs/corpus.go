package inputs

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
)

// CorpusBytes is the size of the corpus, and the most that one body takes of it.
const CorpusBytes = 8 << 20

// Corpus returns the text that bodies are cut from. Its words are as frequent as
// words are, so that it compresses about as well as text does.
func Corpus() []byte {
	rng := rand.New(rand.NewPCG(0, 0))
	words := make([][]byte, 20_000)
	for i := range words {
		words[i] = make([]byte, 2+rng.IntN(9))
		for j := range words[i] {
			words[i][j] = "etaoinshrdlucmfwypvbgkjqxz"[int(26*rng.Float64()*rng.Float64())]
		}
	}
	frequent := rand.NewZipf(rng, 1.1, 4, uint64(len(words)-1))
	corpus := make([]byte, 0, CorpusBytes+16)
	for len(corpus) < CorpusBytes {
		corpus = append(append(corpus, words[frequent.Uint64()]...), ' ')
	}
	return corpus[:CorpusBytes]
}

// Cut takes a body of size bytes out of the corpus.
func Cut(rng *rand.Rand, corpus []byte, size int) Input {
	offset := rng.IntN(len(corpus) - size + 1)
	body := corpus[offset : offset+size]
	return Input{Body: body, Cut: true, Offset: offset, Expect: map[string]int64{
		"bytes": int64(size),
		"crc32": int64(crc32.ChecksumIEEE(body)),
	}}
}

// Order asks for a page of some rows.
func Order(rng *rand.Rand, rows int) Input {
	ids := make([]int, rows)
	sum := 0
	for i := range ids {
		// IDs have equal lengths, so that the size tells the number of rows.
		ids[i] = 100_000 + rng.IntN(900_000)
		sum += ids[i]
	}
	return described(struct {
		Title string `json:"title"`
		IDs   []int  `json:"ids"`
	}{"Parts in stock", ids}, map[string]int64{"rows": int64(len(ids)), "id_sum": int64(sum)})
}

// described returns an input whose body is a JSON object.
func described(body any, expect map[string]int64) Input {
	b, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("a body of numbers and strings does not marshal: %v", err))
	}
	return Input{Body: b, Expect: expect}
}
