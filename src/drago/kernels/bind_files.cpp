// Visits to rows that lie in files.
#include "bind_visits.hpp"
#include "filed.hpp"

namespace drago {
namespace {

using Numbers = Array1<const std::int64_t>;
using Entries = Array1<std::int64_t>;

// Rows that a thread gathers at once.
constexpr Index GATHERED = 2048;

using Matrix = std::variant<Array2<double>, Array2<float>>;
using Vector = std::variant<Array1<double>, Array1<float>>;
using AnyDense = std::variant<FiledDense<double>, FiledDense<float>>;
using AnySparse = std::variant<FiledCsr<double>, FiledCsr<float>>;

AnyDense dense(Matrix X, Array2<std::int64_t> rows, double low, double high, double width,
               int file, std::int64_t place, Index start, Index origin, Index gap,
               Entries report) {
    const auto open = [&](auto x) -> AnyDense {
        using T = typename decltype(x)::Entry;
        const Index d = static_cast<Index>(x.shape(1));
        return FiledDense<T>{{file, 0, place, origin < 0 ? -1 : origin * d, {report.data()}},
                             d, start, gap, {view(rows), view(x), low, high, width}};
    };
    return std::visit(open, X);
}

AnySparse sparse(Vector data, Array1<std::int32_t>, int data_file, std::int64_t data_place,
                 int indices, std::int64_t indices_place, Index d, Numbers indptr, Index origin,
                 Index gap, Entries report) {
    const Report all{report.data()};
    const auto open = [&](auto x) -> AnySparse {
        using T = typename decltype(x)::Entry;
        return FiledCsr<T>{{data_file, 0, data_place, origin, all},
                           {indices, 1, indices_place, origin, all}, d, view(indptr), gap};
    };
    return std::visit(open, data);
}

void bind_gather(nb::module_& m) {
    m.def(
        "gather_filed",
        [](int file, std::int64_t place, Index start, Index gap, Numbers index, Index n_threads,
           Entries report, Matrix out) {
            const nb::gil_scoped_release released;
            const auto gather = [&](auto to) {
                using T = typename decltype(to)::Entry;
                const Index n = static_cast<Index>(index.size()), d = view(to).cols;
                const FiledDense<T> all{{file, 0, place, -1, {report.data()}}, d, start, gap, {}};
                in_parts_with((n + GATHERED - 1) / GATHERED, n_threads, true, [&] {
                    return [&, own = all.of_thread()](Index k) mutable {
                        const Index first = k * GATHERED, size = std::min(GATHERED, n - first);
                        std::vector<std::int64_t> rows(index.data() + first,
                                                       index.data() + first + size);
                        own.enter(k, 0);
                        own.each(rows.data(), size, [&](Index r, const T* x) {
                            std::copy(x, x + d, view(to).row(first + r));
                        });
                    };
                });
            };
            std::visit(gather, out);
        },
        "file"_a, "place"_a, "start"_a, "gap"_a, "index"_a.noconvert(), "n_threads"_a,
        "report"_a.noconvert(), "out"_a.noconvert(),
        "``out`` = some of the rows of a file, in ascending order.");
}

}  // namespace

void bind_files(nb::module_& m) {
    bind_storage(m, dense, "X"_a.noconvert(), "rows"_a.noconvert(), "low"_a, "high"_a,
                 "width"_a, "file"_a, "place"_a, "start"_a, "origin"_a, "gap"_a,
                 "report"_a.noconvert());
    bind_storage(m, sparse, "data"_a.noconvert(), "indices"_a.noconvert(), "data_file"_a,
                 "data_place"_a, "indices_file"_a, "indices_place"_a, "n_features"_a,
                 "indptr"_a.noconvert(), "origin"_a, "gap"_a, "report"_a.noconvert());
    bind_gather(m);
}

}  // namespace drago
