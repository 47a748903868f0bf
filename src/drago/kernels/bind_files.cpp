// Visits to rows that lie in files.
#include "bind_visits.hpp"
#include "filed.hpp"

namespace drago {
namespace {

using Numbers = Array1<const std::int64_t>;
using Entries = Array1<std::int64_t>;

// Rows that a thread gathers at once.
constexpr Index GATHERED = 2048;

template <class T>
FiledDense<T> dense(Array2<T> X, Array2<std::int64_t> rows, double low, double high, double width,
                    int file, std::int64_t place, Index start, Index origin, Index gap,
                    Entries report) {
    const Index d = static_cast<Index>(X.shape(1));
    return {{file, 0, place, origin < 0 ? -1 : origin * d, {report.data()}}, d, start, gap,
            {view(rows), view(X), low, high, width}};
}

template <class T>
FiledCsr<T> sparse(Array1<T>, Array1<std::int32_t>, int data, std::int64_t data_place, int indices,
                   std::int64_t indices_place, Index d, Numbers indptr, Index origin, Index gap,
                   Entries report) {
    const Report all{report.data()};
    return {{data, 0, data_place, origin, all}, {indices, 1, indices_place, origin, all},
            d, view(indptr), gap};
}

template <class T>
void bind_gather(nb::module_& m) {
    m.def(
        "gather_filed",
        [](int file, std::int64_t place, Index start, Index gap, Numbers index, Index n_threads,
           Entries report, Array2<T> out) {
            const nb::gil_scoped_release released;
            const Index n = static_cast<Index>(index.size()), d = view(out).cols;
            const FiledDense<T> all{{file, 0, place, -1, {report.data()}}, d, start, gap, {}};
            in_parts_with((n + GATHERED - 1) / GATHERED, n_threads, [&] {
                return [&, own = all.of_thread()](Index k) mutable {
                    const Index first = k * GATHERED, size = std::min(GATHERED, n - first);
                    std::vector<std::int64_t> rows(index.data() + first,
                                                   index.data() + first + size);
                    own.enter(k, 0);
                    own.each(rows.data(), size, [&](Index r, const T* x) {
                        std::copy(x, x + d, view(out).row(first + r));
                    });
                };
            });
        },
        "file"_a, "place"_a, "start"_a, "gap"_a, "index"_a.noconvert(), "n_threads"_a,
        "report"_a.noconvert(), "out"_a.noconvert(),
        "``out`` = some of the rows of a file, in ascending order.");
}

template <class T>
void bind_type(nb::module_& m) {
    bind_storage(m, dense<T>, "X"_a.noconvert(), "rows"_a.noconvert(), "low"_a, "high"_a,
                 "width"_a, "file"_a, "place"_a, "start"_a, "origin"_a, "gap"_a,
                 "report"_a.noconvert());
    bind_storage(m, sparse<T>, "data"_a.noconvert(), "indices"_a.noconvert(), "data_file"_a,
                 "data_place"_a, "indices_file"_a, "indices_place"_a, "n_features"_a,
                 "indptr"_a.noconvert(), "origin"_a, "gap"_a, "report"_a.noconvert());
    bind_gather<T>(m);
}

}  // namespace

void bind_files(nb::module_& m) {
    bind_type<double>(m);
    bind_type<float>(m);
}

}  // namespace drago
