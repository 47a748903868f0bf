#include "blas.hpp"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace drago {
namespace {

using Gemv = void(char*, int*, int*, double*, double*, int*, double*, int*, double*, double*, int*);
using Syrk = void(char*, char*, int*, int*, double*, double*, int*, double*, double*, int*);

// SciPy publishes the addresses for Cython, each in a capsule that is named by its signature.
template <class F>
F* find(const char* name) {
    nb::gil_scoped_acquire acquire;
    nb::object table = nb::module_::import_("scipy.linalg.cython_blas").attr("__pyx_capi__");
    nb::object capsule = table[name];
    return reinterpret_cast<F*>(
        PyCapsule_GetPointer(capsule.ptr(), PyCapsule_GetName(capsule.ptr())));
}

}  // namespace

void gemv(Mat<const double> X, bool transposed, const double* x, double* y) {
    static Gemv* const call = find<Gemv>("dgemv");
    // To BLAS, which goes by columns, X is its transpose.
    char trans = transposed ? 'N' : 'T';
    int m = static_cast<int>(X.cols), n = static_cast<int>(X.rows), one = 1;
    double alpha = 1.0, beta = 0.0;
    call(&trans, &m, &n, &alpha, const_cast<double*>(X.data), &m, const_cast<double*>(x), &one,
         &beta, y, &one);
}

void add_square(Mat<const double> rows, Mat<double> square) {
    static Syrk* const call = find<Syrk>("dsyrk");
    // The upper triangle by columns is the lower one by rows.
    char uplo = 'U', trans = 'N';
    int n = static_cast<int>(rows.cols), k = static_cast<int>(rows.rows);
    double one = 1.0;
    call(&uplo, &trans, &n, &k, &one, const_cast<double*>(rows.data), &n, &one, square.data, &n);
}

}  // namespace drago
