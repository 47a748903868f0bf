// Visits to rows, and what is done with the vectors of DRAGO's tables.
#include <optional>

#include "bind.hpp"
#include "blocks.hpp"
#include "checksum.hpp"
#include "drago.hpp"
#include "eigen.hpp"
#include "rows.hpp"
#include "unsettled.hpp"

namespace drago {
namespace {

using nb::literals::operator""_a;

using Ints = Array1<const std::int64_t>;
using InMatrix = Array2<const double>;
using OutMatrix = Array2<double>;
using OutInts = std::variant<Array1<std::int32_t>, Array1<std::int64_t>>;
using Room = Array2<std::int64_t>;

template <class T, class I>
Csr<T, I> of_views(Vec<const T> data, Vec<const I> indices, Vec<const I> indptr) {
    return {data, indices, indptr};
}

// Lets other threads run while there is work for more than a few microseconds.
class Released {
  public:
    explicit Released(std::size_t entries) {
        if (entries > 4096) release_.emplace();
    }

  private:
    std::optional<nb::gil_scoped_release> release_;
};

void bind_dense(nb::module_& m) {
    m.def(
        "block_evaluate",
        [](AnyMatrix X, Index k, Index count, Index group, Index lo, Index hi, InArray w, double b,
           int code, double parameter, InArray y, OutArray losses, OutArray slopes) {
            const nb::gil_scoped_release released;
            const auto evaluate = [&](auto x) {
                block_evaluate(view(x), {k, count, group, lo, hi}, view(w), b, code, parameter,
                               view(y), view(losses), view(slopes));
            };
            std::visit(evaluate, X);
        },
        "X"_a.noconvert(), "k"_a, "count"_a, "group"_a, "lo"_a, "hi"_a, "w"_a.noconvert(), "b"_a,
        "code"_a, "parameter"_a, "y"_a.noconvert(), "losses"_a.noconvert(),
        "slopes"_a.noconvert(),
        "Losses of the places `lo` to `hi`, and slopes if there is room for any.");
    m.def(
        "block_correct",
        [](AnyMatrix X, Index k, Index count, Index group, Index lo, Index hi, InArray w, double b,
           int code, double parameter, InArray y, InArray q, InArray product, Room picked,
           OutArray out) {
            const nb::gil_scoped_release released;
            const auto correct = [&](auto x) {
                return block_correct(view(x), {k, count, group, lo, hi}, view(w), b, code,
                                     parameter, view(y), view(q), view(product), view(picked),
                                     view(out));
            };
            return std::visit(correct, X);
        },
        "X"_a.noconvert(), "k"_a, "count"_a, "group"_a, "lo"_a, "hi"_a, "w"_a.noconvert(), "b"_a,
        "code"_a, "parameter"_a, "y"_a.noconvert(), "q"_a.noconvert(), "product"_a.noconvert(),
        "picked"_a.noconvert(), "out"_a.noconvert(),
        "``out = sum over the places of x (q s - product)``; returns the sum without x.");
    m.def(
        "block_gradient",
        [](AnyMatrix X, Ints starts, Index group, Index lo, Index hi, InArray w, double b,
           int code, double parameter, InArray y, InArray q, double least, Room picked,
           OutArray out) {
            const nb::gil_scoped_release released;
            const auto gradient = [&](auto x) {
                return block_gradient(view(x), view(starts), group, lo, hi, view(w), b, code,
                                      parameter, view(y), view(q), least, view(picked),
                                      view(out));
            };
            return std::visit(gradient, X);
        },
        "X"_a.noconvert(), "starts"_a.noconvert(), "group"_a, "lo"_a, "hi"_a, "w"_a.noconvert(),
        "b"_a, "code"_a, "parameter"_a, "y"_a.noconvert(), "q"_a.noconvert(), "least"_a,
        "picked"_a.noconvert(), "out"_a.noconvert(),
        "``out = sum of x q s`` over groups of all blocks; returns the sum without x.");
    m.def(
        "block_accumulate",
        [](AnyMatrix X, Index k, Index count, Index group, Index lo, Index hi, InArray c,
           Room picked, OutArray out) {
            const nb::gil_scoped_release released;
            const auto accumulate = [&](auto x) {
                block_accumulate(view(x), {k, count, group, lo, hi}, view(c), view(picked),
                                 view(out));
            };
            std::visit(accumulate, X);
        },
        "X"_a.noconvert(), "k"_a, "count"_a, "group"_a, "lo"_a, "hi"_a, "c"_a.noconvert(),
        "picked"_a.noconvert(), "out"_a.noconvert(), "``out = sum over the places of c x``.");
}

void bind_csr(nb::module_& m) {
    m.def(
        "csr_predict",
        [](AnyVector data, AnyInts indices, AnyInts indptr, Index first, Index stride, InMatrix w,
           OutMatrix raw) {
            const nb::gil_scoped_release released;
            const auto predict = [&](auto X) { csr_predict(X, first, stride, view(w), view(raw)); };
            std::visit(predict, csr(data, indices, indptr));
        },
        "data"_a.noconvert(), "indices"_a.noconvert(), "indptr"_a.noconvert(), "first"_a,
        "stride"_a, "w"_a.noconvert(), "raw"_a.noconvert(), "``raw = X_block w``.");
    m.def(
        "csr_accumulate",
        [](AnyVector data, AnyInts indices, AnyInts indptr, Index first, Index stride,
           InMatrix weights, OutMatrix out) {
            const nb::gil_scoped_release released;
            const auto accumulate = [&](auto X) {
                csr_accumulate(X, first, stride, view(weights), view(out));
            };
            std::visit(accumulate, csr(data, indices, indptr));
        },
        "data"_a.noconvert(), "indices"_a.noconvert(), "indptr"_a.noconvert(), "first"_a,
        "stride"_a, "weights"_a.noconvert(), "out"_a.noconvert(),
        "``out += X_block' weights``.");
}

void bind_lists(nb::module_& m) {
    m.def(
        "unsettled_find",
        [](InArray table, InArray change, InArray q, InArray p, Index first, Index last,
           double low, double high, double cap, OutInts where, OutArray level, OutArray weight,
           Index start, Index room) {
            const auto find = [&](auto where) {
                const Released released(static_cast<std::size_t>(last - first));
                const Lists lists{view(where), view(level), view(weight)};
                return unsettled_find(view(table), view(change), view(q), view(p), first, last,
                                      low, high, cap, lists, start, room);
            };
            const Found found = std::visit(find, where);
            return std::make_tuple(found.size, found.capped);
        },
        "table"_a.noconvert(), "change"_a.noconvert(), "q"_a.noconvert(), "p"_a.noconvert(),
        "first"_a, "last"_a, "low"_a, "high"_a, "cap"_a, "where"_a.noconvert(),
        "level"_a.noconvert(), "weight"_a.noconvert(), "start"_a, "room"_a,
        "List the rows whose weight can change; how many, and the mass of those at the cap.");
    m.def(
        "unsettled_collect",
        [](AnyInts where, InArray level, InArray weight, InArray p, Ints starts, Ints sizes,
           double s, OutArray u, OutArray mass) {
            const Released released(u.size());
            const auto collect = [&](auto where) {
                return unsettled_collect(view(where), view(level), view(weight), view(p),
                                         view(starts), view(sizes), s, view(u), view(mass));
            };
            return std::visit(collect, where);
        },
        "where"_a.noconvert(), "level"_a.noconvert(), "weight"_a.noconvert(), "p"_a.noconvert(),
        "starts"_a.noconvert(), "sizes"_a.noconvert(), "s"_a, "u"_a.noconvert(),
        "mass"_a.noconvert(), "The argument of the dual step for all rows in the lists.");
    m.def(
        "unsettled_write",
        [](AnyInts where, InArray weight, Index start, Index size, OutArray q) {
            const Released released(static_cast<std::size_t>(size));
            const auto write = [&](auto where) {
                unsettled_write(view(where), view(weight), start, size, view(q));
            };
            std::visit(write, where);
        },
        "where"_a.noconvert(), "weight"_a.noconvert(), "start"_a, "size"_a, "q"_a.noconvert(),
        "The weights of a list, put in their places.");
}

void bind_vectors(nb::module_& m) {
    m.def(
        "checksum",
        [](Array1<const std::uint8_t> data, std::uint64_t start) {
            const Released released(data.size());
            return checksum(data.data(), static_cast<Index>(data.size()), start);
        },
        "data"_a.noconvert(), "start"_a, "That of bytes from a word of their part on.");
    m.def(
        "unsettled_total",
        [](InArray values) {
            const Released released(values.size());
            return unsettled_total(view(values));
        },
        "new"_a.noconvert(), "The sum of some weights.");
    m.def(
        "unsettled_deal",
        [](InArray values, Ints starts, Ints sizes, OutArray weight) {
            const Released released(values.size());
            unsettled_deal(view(values), view(starts), view(sizes), view(weight));
        },
        "new"_a.noconvert(), "starts"_a.noconvert(), "sizes"_a.noconvert(),
        "weight"_a.noconvert(), "New weights of the rows in the lists.");
    m.def(
        "proximal_argument",
        [](InArray table, double s, InArray mirror, OutArray u) {
            const Released released(u.size());
            proximal_argument(view(table), s, view(mirror), view(u));
        },
        "table"_a.noconvert(), "s"_a, "mirror"_a.noconvert(), "u"_a.noconvert(),
        "``u = table + s mirror``.");
    m.def(
        "proximal_argument_chi2",
        [](InArray table, double s, InArray q, InArray p, OutArray u) {
            const Released released(u.size());
            proximal_argument_chi2(view(table), s, view(q), view(p), view(u));
        },
        "table"_a.noconvert(), "s"_a, "q"_a.noconvert(), "p"_a.noconvert(), "u"_a.noconvert(),
        "``u = table + s q/p``.");
    m.def(
        "proximal_point",
        [](InMatrix here, InMatrix window, double near, double far, InMatrix grad,
           InArray eigenvalues, InMatrix basis, double mu, double weight, OutMatrix out) {
            const Released released(basis.size());
            proximal_point(view(here), view(window), near, far, view(grad), view(eigenvalues),
                           view(basis), mu, weight, view(out));
        },
        "here"_a.noconvert(), "window"_a.noconvert(), "near"_a, "far"_a, "grad"_a.noconvert(),
        "eigenvalues"_a.noconvert(), "basis"_a.noconvert(), "mu"_a, "weight"_a,
        "out"_a.noconvert(), "``argmin <grad, w> + (mu/2)||w||^2`` and proximal terms.");
    m.def(
        "scaled_change",
        [](OutArray losses, InArray before, double scale) {
            const Released released(losses.size());
            scaled_change(view(losses), view(before), scale);
        },
        "losses"_a.noconvert(), "before"_a.noconvert(), "scale"_a,
        "``losses = scale (losses - before)``.");
    m.def(
        "renew",
        [](OutArray slopes, InArray q, OutArray product) {
            const Released released(q.size());
            return renew(view(slopes), view(q), view(product));
        },
        "slopes"_a.noconvert(), "q"_a.noconvert(), "product"_a.noconvert(),
        "``slopes = q slopes - product``, which is added to `product`; returns its sum.");
    m.def(
        "jacobi", [](OutMatrix A, OutMatrix V) { jacobi(view(A), view(V)); }, "A"_a.noconvert(),
        "V"_a.noconvert(),
        "Fill `V` with the eigenvectors of a symmetric matrix; its diagonal: the eigenvalues.");
    m.def(
        "curvature_of_rows",
        [](InMatrix X, InArray p, InArray mean, double floor, double curvature, double mu,
           OutArray eigenvalues, OutMatrix basis) {
            const Released released(X.size());
            return curvature_of_rows(view(X), view(p), view(mean), floor, curvature, mu,
                                     view(eigenvalues), view(basis));
        },
        "X"_a.noconvert(), "p"_a.noconvert(), "mean"_a.noconvert(), "floor"_a, "curvature"_a,
        "mu"_a, "eigenvalues"_a.noconvert(), "basis"_a.noconvert(),
        "Fill in those of ``curvature * moments + mu``; returns whether they are finite.");
}

}  // namespace

AnyCsr csr(const AnyVector& data, const AnyInts& indices, const AnyInts& indptr) {
    const auto open = [&](auto entries, auto places) -> AnyCsr {
        const auto* starts = std::get_if<decltype(places)>(&indptr);
        if (!starts) throw nb::next_overload();  // a TypeError
        return of_views(view(entries), view(places), view(*starts));
    };
    return std::visit(open, data, indices);
}

void bind_rows(nb::module_& m) {
    m.attr("TOGETHER") = TOGETHER;
    bind_dense(m);
    bind_csr(m);
    bind_lists(m);
    bind_vectors(m);
}

}  // namespace drago
