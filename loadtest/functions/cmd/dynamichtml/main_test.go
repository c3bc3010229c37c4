package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"libra.dev/libra/loadtest/functions/server"
	"libra.dev/libra/loadtest/functions/storeapi"
)

func TestWorkRendersEveryRowInPages(t *testing.T) {
	queries := 0
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries++
		var rows []storeapi.Row
		for _, f := range strings.Split(r.URL.Query().Get("ids"), ",") {
			id, err := strconv.Atoi(f)
			if err != nil {
				t.Error(err)
			}
			rows = append(rows, storeapi.RowOf(id))
		}
		server.WriteJSON(w, http.StatusOK, rows)
	}))
	defer store.Close()

	ids := make([]string, storeapi.MaxRows+1)
	sum := 0
	for i := range ids {
		ids[i] = strconv.Itoa(i)
		sum += i
	}
	body := []byte(`{"title":"<parts>","ids":[` + strings.Join(ids, ",") + `]}`)
	did, err := renderer{store: storeapi.NewClient(store.URL)}.work(context.Background(), body)
	if err != nil {
		t.Fatal(err)
	}
	if r := did.(result); r.Rows != len(ids) || r.IDSum != sum || r.Bytes == 0 {
		t.Errorf("it says it did %+v", r)
	}
	if queries != 2 {
		t.Errorf("fetched %d rows in %d queries, want 2", len(ids), queries)
	}
}

func TestWorkRefusesWhatIsNoOrder(t *testing.T) {
	_, err := renderer{}.work(context.Background(), []byte("hello"))
	if !errors.As(err, &server.BadRequestError{}) {
		t.Errorf("got %v, want a bad request", err)
	}
}

func TestRowsAreEscaped(t *testing.T) {
	var page bytes.Buffer
	if err := rows.Execute(&page, []storeapi.Row{{Name: "<script>"}}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "<script>") {
		t.Errorf("a row's name is in the page as it is: %s", page.String())
	}
}
