// Each process adds its rank, and the first one prints the sum and where all of them ran.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    int rank, size, sum;
    char place[16] = "", *places = NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    // Open MPI numbers the processes of a node, and sshd says who has come.
    snprintf(place, sizeof place, "%d", getenv("SSH_CONNECTION") != NULL);
    if (rank == 0) places = malloc((size_t)size * sizeof place);
    MPI_Gather(place, sizeof place, MPI_CHAR, places, sizeof place, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        int by_ssh = 0;
        for (int n = 0; n < size; n++) by_ssh += places[n * (int)sizeof place] == '1';
        printf("the sum of %d ranks is %d; ssh started %d of them\n", size, sum, by_ssh);
        free(places);
    }
    MPI_Finalize();
    return 0;
}
